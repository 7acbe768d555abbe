"""The choices that a policy is a row of, one slot a file.

Device slots read a `Session`, worker slots read `Item`s and `Backlog`s. All are pure: no state, no clock, and luck
only by name.
"""
