"""The asyncio shell around the synchronous station: links, successors, the compute thread, the process."""
