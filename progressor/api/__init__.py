"""The wire: what clients and operators ask, made into domain requests, and what they get back.

`app` builds it and nobody else imports it. It decides nothing: the codecs read and write messages,
the servicers call the collaborators of `ports`, `status` tells errors.
Start with `process_servicer`; `server` and `interceptors` are what stands around it,
`session` is the other way in to the same methods.
"""
