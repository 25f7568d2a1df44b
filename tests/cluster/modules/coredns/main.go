// Command coredns is CoreDNS with only the plugins of the Corefile in harness/control_plane.py. Almost half of the
// packages in the upstream command are clients of clouds and of tracing services.
package main

import (
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	coremain.Run()
}
