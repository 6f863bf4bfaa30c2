// A server whose rate limit is that of a middleware, as the middleware's documentation configures it. Its only argument is JSON: the
// middleware, and its limit of n requests in so many seconds. It prints its port, and ends with its standard input.
'use strict'

const { createServer } = require('http')
const { setTimeout: sleep } = require('timers/promises')

const { middleware, n, seconds } = JSON.parse(process.argv[2])
const work = () => sleep(2)

function express(limit) {
  const app = require('express')()
  app.get('/limited', limit, async (_, res) => {
    await work()
    res.send('ok\n')
  })
  return app
}

function koa2() {
  const app = new (require('koa'))()
  app.use(require('koa2-ratelimit').RateLimit.middleware({ interval: { sec: seconds }, max: n }))
  app.use(async ctx => {
    await work()
    ctx.body = 'ok\n'
  })
  return app.callback()
}

function hono(draft) {
  const app = new (require('hono').Hono)()
  const { rateLimiter } = require('hono-rate-limiter')
  app.use(rateLimiter({ windowMs: seconds * 1000, limit: n, standardHeaders: draft, keyGenerator: () => 'everybody' }))
  app.get('/limited', async c => {
    await work()
    return c.text('ok\n')
  })
  return require('@hono/node-server').getRequestListener(app.fetch)
}

// The limiter decides; headers are those of the README's example, in accepted responses as well, or none.
function flexible(limiter, headers = () => ({})) {
  return express((req, res, next) => limiter.consume(req.ip).then(
    result => { res.set(headers(result)); next() },
    result => res.set(headers(result)).status(429).send('Too Many Requests')))
}

const { RateLimiterMemory, BurstyRateLimiter } = require('rate-limiter-flexible')
const flexibleHeaders = result => ({
  'Retry-After': result.msBeforeNext / 1000,
  'X-RateLimit-Limit': n,
  'X-RateLimit-Remaining': result.remainingPoints,
  'X-RateLimit-Reset': Math.ceil((Date.now() + result.msBeforeNext) / 1000)
})

const throttle = options => express(require('express-throttle')(options))

const handlers = {
  'koa2-ratelimit': koa2,
  'hono-rate-limiter, draft-6': () => hono('draft-6'),
  'hono-rate-limiter, draft-7': () => hono('draft-7'),
  'rate-limiter-flexible, no headers': () => flexible(new RateLimiterMemory({ points: n, duration: seconds })),
  'rate-limiter-flexible': () => flexible(new RateLimiterMemory({ points: n, duration: seconds }), flexibleHeaders),
  'rate-limiter-flexible, blocked for 3 s': () =>
    flexible(new RateLimiterMemory({ points: n, duration: seconds, blockDuration: 3 }), flexibleHeaders),
  'rate-limiter-flexible, 10 per 1 s and bursts of 20 per 10 s': () => flexible(new BurstyRateLimiter(
    new RateLimiterMemory({ points: 10, duration: 1 }),
    new RateLimiterMemory({ keyPrefix: 'burst', points: 20, duration: 10 }))),
  'express-throttle, no headers': () => throttle({ rate: `${n}/${seconds}s` }),
  'express-throttle, burst 40, remaining tokens': () => throttle({
    rate: `${n}/${seconds}s`,
    burst: 40,
    on_allowed(req, res, next, bucket) {
      res.set('X-Rate-Limit-Limit', n)
      res.set('X-Rate-Limit-Remaining', bucket.tokens)
      next()
    }
  }),
  'express-throttle, fixed window, 503': () => throttle({
    burst: n,
    period: `${seconds}s`,
    on_throttled(req, res, next, bucket) {
      res.set('X-Rate-Limit-Limit', n)
      res.set('X-Rate-Limit-Remaining', 0)
      res.set('X-Rate-Limit-Reset', bucket.etime)
      res.status(503).send('System overloaded, try again at a later time.')
    }
  })
}

const server = createServer(handlers[middleware]()).listen(0, '127.0.0.1', () => console.log(server.address().port))
process.stdin.on('end', () => process.exit()).resume()
