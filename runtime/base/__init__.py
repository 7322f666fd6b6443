"""What every data-plane process needs: clock, logs, lifeline, a small ASGI kit. Knows the wire, nothing else."""
