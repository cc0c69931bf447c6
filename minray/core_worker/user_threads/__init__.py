"""The methods through which user threads enter the core worker, which runs on an event loop of its own.

Ray: the methods of CoreWorker that python/ray/_raylet.pyx calls

A method here runs in the thread that called it. It does what is safe in that thread, and posts the rest to the loop.
"""
