"""What to buy for a number of users: chips of one's own, or calls of a hosted API, under one policy."""
