"""The transports: memory, websockets and picows behind one interface (`base`), the same bytes on each."""
