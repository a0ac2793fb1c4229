"""HTDAG: a request is decomposed, decision by decision, into a directed acyclic graph (DAG) of tasks."""
