"""The pure arithmetic of "where": which node and which moment a lease request gets. No IO, no clock."""
