"""What a database says, for people: gains, coverage, histories, differences, integrity.

Each module answers one question with frozen dataclasses; the command line and the scripts print or draw them. All take
an open store, write nothing, and read large tables as a stream.
"""
