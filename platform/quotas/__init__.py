"""How much capacity a tenant may hold, and the one check that everything which takes some passes."""
