"""The simulation in a page: threads without threads, and what a page asks.

``stacks`` has the threads of user code where Python has none. ``answers`` makes what the page shows, and needs no browser.
``minray.simulation.browser.session`` is what the page's web worker imports (``docs/playground/worker.js``). ``user_code``
imports ``stacks`` in a browser alone, so this package imports nothing.
Ray has no counterpart.
"""
