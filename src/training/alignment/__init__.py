"""How far the small model agrees with the large one, and what confidence and importance tell of it."""
