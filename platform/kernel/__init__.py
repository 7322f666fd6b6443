"""Model-free base of the control plane: errors, state machines, scope, clock, ids, API base. Knows no other room."""
