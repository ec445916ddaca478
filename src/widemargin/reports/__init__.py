"""Runs and measurements as pictures and tables; reads results, never trains."""
