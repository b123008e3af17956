"""Everything that imports JAX: simulated devices and measurements. Import the module you need; this package imports nothing."""
