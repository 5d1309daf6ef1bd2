"""The synchronous station: messages in, replies out. No sockets, no event loop, no clock."""
