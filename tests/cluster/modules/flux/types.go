// Package flux makes the types of Flux's HelmRelease available to controller-gen, because Flux publishes its CRD outside of Go.
package flux

import _ "github.com/fluxcd/helm-controller/api/v2"
