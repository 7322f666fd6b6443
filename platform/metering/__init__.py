"""Who used how much: usage records booked exactly once, sums per hour, and their export."""
