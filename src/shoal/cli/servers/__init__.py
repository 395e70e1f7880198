"""The long-running processes `shoal control` and `shoal agent`, and `shoal certs` for their certificates.

Reads settings, joins the packages into a process and handles signals. What a server does is in `shoal.control` and
`shoal.agent`.
"""
