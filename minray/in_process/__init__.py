"""The in-process world: a whole cluster inside one Python process, in real time, for tests of people's own programs.

Ray: ray.init(local_mode=True) in python/ray/_private/worker.py, until 2.53

``minray.init(local_mode=True)`` starts it. It is the third side of the seam (``minray/platform/base.py``): the gcs, the
raylets and the core workers are the same code as in real processes and in the simulation. A "process" is a named group of
callbacks and tasks on one loop, with a context and an identity of its own (``process``). Channels pass the records that
sockets would carry (``network``). Memory is a mapping that the processes share (``memory``). User code of each worker has
a thread of its own (``user_code``), so it may block, and breakpoints, coverage and mocks work as in any thread.

All workers share modules and their globals, ``sys.path``, the working directory, signal handlers and standard streams, since
a process of the system has them only once. ``docs/testing.md`` lists the differences.
"""
