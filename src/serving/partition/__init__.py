"""How the blocks of a model are divided over tiers of nodes (Hyperion, sections III and IV-A)."""
