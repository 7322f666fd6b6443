"""Where replicas go: frozen snapshot, filters with reasons, pure plan, commit under lock."""
