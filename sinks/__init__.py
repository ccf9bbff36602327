"""The built-in sinks, one module for each destination.

They import `connector` as any third-party plugin does, and are loaded by the same entry points, so each may serve as a
model: `null` is the least that a sink can be, `stdout` a stream, `file` one that follows events, `http` one with a word
on each record, `sqlite` a database, `postgres` a database that holds the positions too.
"""
