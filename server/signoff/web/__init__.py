"""The Litestar app: pages, API, live streams and sign-in."""
