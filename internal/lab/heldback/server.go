package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/limiter"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"golang.org/x/time/rate"

	"github.com/httpthrottle/throttle/internal/lab/realserver"
)

const (
	path = "/limited" // what realserver's load asks for
	work = 2 * time.Millisecond
)

// A server is a running server, with the URL of what it limits.
type server struct {
	url   string
	close func()
}

// A starter starts a server with the limit of a Spec.
type starter func(realserver.Spec) (server, error)

func listen(serve func(net.Listener) error, closed func() error) (server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return server{}, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := serve(l); err != nil && err != http.ErrServerClosed {
			log.Print(err)
		}
	}()
	return server{"http://" + l.Addr().String() + path, func() {
		_ = closed() // what it still serves is of no use
		<-ended
	}}, nil
}

// fiberLimiter limits as Fiber's documentation shows. most is its Max.
func fiberLimiter(algorithm limiter.Handler, most int) starter {
	return func(s realserver.Spec) (server, error) {
		app := fiber.New()
		app.Use(limiter.New(limiter.Config{Max: most, Expiration: s.Per, LimiterMiddleware: algorithm}))
		app.Get(path, func(c fiber.Ctx) error {
			time.Sleep(work)
			return c.SendString("ok\n")
		})
		return listen(func(l net.Listener) error {
			return app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true})
		}, func() error { return app.ShutdownWithTimeout(time.Second) })
	}
}

// echoLimiter limits with Echo's RateLimiterWithConfig. Without a burst, that is the rate.
func echoLimiter(burst int, deny func(echo.Context, string, error) error) starter {
	return func(s realserver.Spec) (server, error) {
		e := echo.New()
		e.Use(middleware.RateLimiterWithConfig(middleware.RateLimiterConfig{
			Store: middleware.NewRateLimiterMemoryStoreWithConfig(middleware.RateLimiterMemoryStoreConfig{
				Rate: rate.Limit(s.Rate()), Burst: burst, ExpiresIn: 3 * time.Minute,
			}),
			DenyHandler: deny,
		}))
		e.GET(path, func(c echo.Context) error {
			time.Sleep(work)
			return c.String(http.StatusOK, "ok\n")
		})
		srv := &http.Server{Handler: e}
		return listen(srv.Serve, srv.Close)
	}
}

func forbidden(c echo.Context, _ string, _ error) error { return c.JSON(http.StatusForbidden, nil) }

// node starts server.js with one of its middlewares.
func node(middleware string) starter {
	return func(s realserver.Spec) (srv server, err error) {
		arg, err := json.Marshal(map[string]any{"middleware": middleware, "n": s.N, "seconds": s.Per.Seconds()})
		if err != nil {
			return srv, err
		}
		cmd := exec.Command("node", "server.js", string(arg))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe() // the server ends when this process does
		if err != nil {
			return srv, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return srv, err
		}
		if err := cmd.Start(); err != nil {
			return srv, err
		}
		port, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			_ = cmd.Wait()
			return srv, fmt.Errorf("%s does not start: %w", s.Name, err)
		}
		return server{"http://127.0.0.1:" + strings.TrimSpace(port) + path, func() {
			_ = in.Close()
			_ = cmd.Wait() // its exit status says nothing of the measurement
		}}, nil
	}
}

// get returns the status of one response.
func get(client *http.Client, url string) (int, error) {
	resp, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}
