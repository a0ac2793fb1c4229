"""Ray: processes on one or several machines that train and generate together; see docs/cluster.md."""
