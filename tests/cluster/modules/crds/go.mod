module feedline.test/crds

go 1.26.0

// Only the CRDs in these modules are read.
require (
	github.com/argoproj/argo-cd/v3 v3.5.7
	github.com/argoproj/argo-workflows/v4 v4.0.5
	github.com/cert-manager/cert-manager v1.21.2
	github.com/fluxcd/source-controller v1.9.6
	github.com/kedacore/keda/v2 v2.20.2
	github.com/kubeflow/trainer/v2 v2.0.0
	github.com/prometheus-operator/prometheus-operator v0.85.0
	github.com/ray-project/kuberay/ray-operator v1.5.0
	sigs.k8s.io/jobset v0.8.2
)
