"""Where the user's threads enter the core worker, which lives on a loop of its own.

Ray: the methods of CoreWorker that python/ray/_raylet.pyx calls

A method here runs in the thread that called it. It does what it can there, and posts the rest to the loop.
"""
