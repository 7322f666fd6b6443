"""Short-term series of what engines report: bounded, droppable, never the truth about anything."""
