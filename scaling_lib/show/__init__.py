"""Everything a reader looks at: plots, tables, answer checks. Import the module you need; this package imports nothing."""
