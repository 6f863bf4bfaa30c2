// A server with a rate limit for each path. Its only argument is JSON:
// framework (express, fastify or none: no limit, and a handler that computes), addr, token, n, window (ms), draft, service (ms until a response).
'use strict'

const o = JSON.parse(process.argv[2])
const [host, port] = o.addr.split(':')
const perPath = req => req.originalUrl ?? req.url

function serveExpress() {
  const express = require('express')
  const { rateLimit } = require('express-rate-limit')
  const app = express()
  app.get('/ready', (_, res) => res.send(o.token))
  app.use(rateLimit({ windowMs: o.window, limit: o.n, standardHeaders: o.draft, legacyHeaders: false, keyGenerator: perPath }))
  app.use((_, res) => setTimeout(() => res.send('ok\n'), o.service))
  app.listen(Number(port), host)
}

async function serveFastify() {
  const app = require('fastify')()
  await app.register(require('@fastify/rate-limit'), { global: false })
  app.get('/ready', (_, reply) => reply.send(o.token))
  const limited = { max: o.n, timeWindow: o.window, keyGenerator: perPath }
  app.get('/*', { config: { rateLimit: limited } }, (_, reply) => { setTimeout(() => reply.send('ok\n'), o.service) })
  await app.listen({ host, port: Number(port) })
}

function serveSlowly() {
  require('http').createServer((req, res) => {
    if (req.url === '/ready') return res.end(o.token)
    for (const end = performance.now() + o.service; performance.now() < end;);
    res.end('ok\n')
  }).listen(Number(port), host)
}

if (o.framework === 'express') serveExpress()
else if (o.framework === 'fastify') serveFastify()
else serveSlowly()
