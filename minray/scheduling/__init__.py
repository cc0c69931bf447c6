"""Pure scheduling decisions: which node serves a lease request, and when. No IO, no clock."""
