"""Where runs are computed: worker processes on this machine, or a Dask cluster."""
