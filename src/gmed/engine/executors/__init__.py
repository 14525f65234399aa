"""Where runs are executed: worker processes on this machine, or a Dask cluster."""
