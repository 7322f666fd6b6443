"""Models, versions, files and uploads; serving configs, runtimes and revisions; what a model costs in memory."""
