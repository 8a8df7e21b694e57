# The sum: drain 5 s + the app's own stop, 40 % of 18 s = 7.2 s + margin 2 s <= kill_timeout 20 s (the default is 5 s, and
# the client's max_kill_timeout, 30 s by default, is the most).
job "node-service" {
  group "app" {
    count = 2

    network {
      port "http" {
        to = 3000
      }
      port "sundown" {
        to = 9180
      }
    }

    service {
      name = "node-service"
      port = "http"

      # Who fails it is sent nothing new.
      check {
        type     = "http"
        port     = "sundown"
        path     = "/readyz"
        interval = "2s"
        timeout  = "1s"
      }
    }

    task "app" {
      driver       = "docker"
      kill_timeout = "20s"

      config {
        image = "registry.example/node-service:1.0.0"
        ports = ["http", "sundown"]
      }

      env {
        SUNDOWN_HTTP         = ":9180"
        SUNDOWN_DRAIN_DELAY  = "5s"
        SUNDOWN_GRACE_PERIOD = "20s"
      }
    }
  }
}
