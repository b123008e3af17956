"""Training by many processes: the worker that each host runs, and the drill that starts them here and kills one."""
