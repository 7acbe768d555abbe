"""Kept results: a committed file for each exhibit, and the tables of docs that are written from them."""
