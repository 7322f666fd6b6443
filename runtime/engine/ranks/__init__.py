"""One replica as several processes, each on a device of its own."""
