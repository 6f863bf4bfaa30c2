// Package realserver lets clients meet the limits of real servers, in real time over loopback sockets: nginx, HAProxy,
// express-rate-limit, @fastify/rate-limit, Flask-Limiter, Varnish and rack-attack. Its tests assert what the limits of this module
// get from them; its report prints the whole table (make servers).
package realserver
