"""What a link carries when it is no constant: recorded traces, and outages on a schedule."""
