"""The node agent: one per machine. Observes devices and engines, compares with what is assigned, acts, reports."""
