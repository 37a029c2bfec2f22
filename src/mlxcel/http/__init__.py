"""The web room: routes, streaming, authentication and errors over ASGI. The only room that knows the web framework."""
