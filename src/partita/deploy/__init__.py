"""A run on real devices: the server, one device, certificates, and what has left a device."""
