"""Who is who: users, tenants, members, keys; and the checks every other room uses."""
