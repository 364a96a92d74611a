// The native module `agentkv_runtime._core`.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

namespace nb = nanobind;

void bind_core(nb::module_& m);
void bind_constraint(nb::module_& m);
void bind_cpu(nb::module_& m);
void bind_drafter(nb::module_& m);
void bind_drafters(nb::module_& m);
void bind_engine(nb::module_& m);
void bind_errors(nb::module_& m);
void bind_faults(nb::module_& m);
void bind_options(nb::module_& m);
void bind_program(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_model_runner(nb::module_& m);
void bind_prompt_lookup(nb::module_& m);
void bind_suffix_drafter(nb::module_& m);
void bind_mixed_drafter(nb::module_& m);
void bind_python_runner(nb::module_& m);
void bind_reports(nb::module_& m);
void bind_stored(nb::module_& m);

NB_MODULE(_core, m) {
  m.doc() = "Native core of agentkv: bookkeeping, byte layers, step loop, ExecuTorch programs.";
  m.def(
      "mlx_version",
      []() -> std::optional<std::string> {
#ifdef AGENTKV_MLX_VERSION
        return AGENTKV_MLX_VERSION;
#else
        return std::nullopt;
#endif
      },
      "The version of mlx that the MLX backend was built with; None where it was built without.");
  nb::set_leak_warnings(false);  // what a thread or a traceback still holds at exit is no user's concern
  bind_errors(m);
  bind_core(m);
  bind_faults(m);
  bind_cpu(m);
  bind_linear(m);
  bind_model_runner(m);  // the base class of every runner below
  bind_reports(m);
  bind_drafter(m);     // the base class of every drafter below
  bind_constraint(m);  // before the options, whose default it is in
  bind_options(m);
  bind_stored(m);
  bind_engine(m);
  bind_program(m);
  bind_python_runner(m);
  bind_prompt_lookup(m);
  bind_suffix_drafter(m);
  bind_mixed_drafter(m);
  bind_drafters(m);
}
