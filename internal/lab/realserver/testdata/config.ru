# An application behind rack-attack with a budget for each path.
require "rack/attack"

# The least that rack-attack needs of a cache in memory.
class Counters
  Counter = Struct.new(:value, :expires)

  def initialize
    @counters = {}
    @mutex = Mutex.new
  end

  def increment(key, amount, expires_in:)
    @mutex.synchronize do
      now = Time.now.to_f
      @counters.delete_if { |_, counter| counter.expires <= now } if @counters.size > 1000
      counter = @counters[key]
      counter = @counters[key] = Counter.new(0, now + expires_in) if counter.nil? || counter.expires <= now
      counter.value += amount
    end
  end

  def read(_key) = nil
  def write(_key, _value, **) = nil
  def delete(_key) = nil
end

Rack::Attack.cache.store = Counters.new
Rack::Attack.throttled_response_retry_after_header = true
Rack::Attack.throttle("path", limit: ENV.fetch("N").to_i, period: ENV.fetch("SECONDS").to_i) do |request|
  request.path unless request.path == "/ready"
end
use Rack::Attack

run(lambda do |env|
  next [200, {}, [ENV.fetch("TOKEN")]] if env["PATH_INFO"] == "/ready"

  sleep ENV.fetch("SERVICE").to_f
  [200, { "content-type" => "text/plain" }, ["ok\n"]]
end)
