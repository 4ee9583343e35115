// SPDX-License-Identifier: Apache-2.0
#include "audit/audit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>

#include "audit/survey.h"
#include "audit/synthetic.h"
#include "base/try.h"
#include "cli/audit_text.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/findings_text.h"
#include "cli/page_file.h"
#include "cli/progress.h"
#include "cli/tensor_file.h"
#include "cli/text.h"
#include "cli/verb.h"

namespace presum::cli {
namespace {

constexpr const char* kAuditHelp =
    "Without files: the same gradients are added in many orders and formats, and each sum is\n"
    "compared with the exact one. With files (.npy, .safetensors; one per worker, or one .npy\n"
    "whose first dimension is the workers) it is done with yours. With --result, the file that\n"
    "your all-reduce gave, it says in which format and order that sum was made.\n\n"
    "Exit code: 0 fine, 1 with --result: sums were accumulated in 16 bits, or elements are\n"
    "further off than rounding explains, 2 could not judge.\n\n"
    "Examples:\n"
    "  presum audit                                          16 workers, fp32, seed 1\n"
    "  presum audit --workers 8 --dtype bf16 --elements 1e7 -o audit.html\n"
    "  presum audit grad_rank*.npy                           your gradients, all orders\n"
    "  presum audit grad_rank*.npy --result reduced.npy      what did the all-reduce do?\n"
    "  presum audit g*.npy --result r.npy --dtype bf16       bf16 saved as two raw bytes\n"
    "The result may have a wider dtype than the gradients: then that is where sums were kept.";

constexpr double kElementsMax = 1e12;
constexpr std::uint64_t kSeedMax = (std::uint64_t{1} << 63) - 1;  // -1 becomes more
constexpr std::uint64_t kChunk = 65'536;
constexpr std::uint64_t kChunkOfAll = 1 << 22;  // of all workers together

struct AuditOptions {
  std::vector<std::string> files;
  std::string result;
  std::uint32_t workers = 16;
  std::string dtype;
  double elements = 1e6;
  std::string distribution = "gradients";
  std::uint64_t seed = 1;
  std::string format = "text";
  std::string output;
  std::vector<std::string> synthetic_only;  // options that were given and say nothing about files
};

// Where the workers' buffers come from, a chunk at a time.
struct GradientSource {
  std::string name;
  std::uint32_t workers = 0;
  Dtype dtype = Dtype::kF32;
  std::uint64_t elements = 0;
  std::shared_ptr<const std::vector<TensorFile>> files;  // none where values are made up
  std::function<Status(std::uint32_t worker, std::uint64_t first, std::uint64_t count, std::byte*)>
      read;
};

Status refuse(std::string why) { return fail(ErrorCode::kInvalidArgument, std::move(why)); }

template <class T>
Result<T> failed(const Status& status) {
  return status.error();
}

Result<GradientSource> synthetic(const AuditOptions& o, std::optional<Dtype> said) {
  const auto distribution = audit::distribution_of(o.distribution);
  if (!distribution) {
    return failed<GradientSource>(
        refuse("--distribution is gradients, gaussian, lognormal or wide"));
  }
  if (!(o.elements >= 1 && o.elements <= kElementsMax) || o.elements != std::floor(o.elements)) {
    return failed<GradientSource>(refuse("--elements is a whole number from 1 to 1e12"));
  }
  const Dtype dtype = said.value_or(Dtype::kF32);
  const auto read = [=, seed = o.seed](std::uint32_t worker, std::uint64_t first,
                                       std::uint64_t count, std::byte* out) -> Status {
    std::vector<double> values(count);
    audit::generate(*distribution, seed, worker, first, values);
    if (dtype == Dtype::kF64) {
      audit::pack(std::span<const double>(values), dtype, out);
      return {};
    }
    std::vector<float> narrow(values.begin(), values.end());
    audit::round_to(dtype, std::span(narrow));
    audit::pack(std::span<const float>(narrow), dtype, out);
    return {};
  };
  return GradientSource{fmt::format("{} {} values of {}, seed {}", o.distribution,
                                    dtype_name(dtype), count(o.workers, "worker"), o.seed),
                        o.workers,
                        dtype,
                        static_cast<std::uint64_t>(o.elements),
                        nullptr,
                        read};
}

Result<GradientSource> from_files(const AuditOptions& o, std::optional<Dtype> said) {
  auto files = std::make_shared<std::vector<TensorFile>>();
  for (const std::string& path : o.files) {
    PRESUM_ASSIGN(auto file, TensorFile::open(path, said));
    if (said && file.dtype() != *said) {
      return failed<GradientSource>(refuse(fmt::format(
          "{}: holds {}, and --dtype says {}", path, dtype_name(file.dtype()), dtype_name(*said))));
    }
    if (!files->empty()) {
      if (const auto why = TensorFile::difference(files->front(), file)) {
        return failed<GradientSource>(refuse(*why));
      }
    }
    files->push_back(std::move(file));
  }
  const TensorFile& first = files->front();
  const bool rows = files->size() == 1;
  if (rows && first.rows() < 2) {
    return failed<GradientSource>(
        refuse(o.files.front() + ": one worker's values; give one file per worker, or one .npy of "
                                 "[workers, elements]"));
  }
  const std::uint64_t workers = rows ? first.rows() : files->size();
  const std::uint64_t elements = rows ? first.row_elements() : first.elements();
  if (elements == 0)
    return failed<GradientSource>(refuse(o.files.front() + ": no elements to judge"));
  const auto read = [=](std::uint32_t worker, std::uint64_t at, std::uint64_t count,
                        std::byte* out) {
    return rows ? (*files)[0].read(worker * elements + at, count, out)
                : (*files)[worker].read(at, count, out);
  };
  return GradientSource{fmt::format("{} of {}: {}{}", dtype_name(first.dtype()),
                                    count(workers, "worker"), o.files.front(), rows ? "" : " ..."),
                        static_cast<std::uint32_t>(std::min<std::uint64_t>(workers, 0xFFFFFFFF)),
                        first.dtype(),
                        elements,
                        files,
                        read};
}

// The workers' buffers of one chunk, and pointers to them.
class ChunkReader {
 public:
  explicit ChunkReader(const GradientSource& source)
      : source_(source),
        most_(std::clamp(kChunkOfAll / source.workers, std::uint64_t{2048}, kChunk)),
        buffers_(source.workers) {
    for (auto& buffer : buffers_) {
      buffer.resize(most_ * element_bytes(source.dtype));
      pointers_.push_back(buffer.data());
    }
  }
  // Calls visit(first, count) for every chunk of the buffers, after reading it.
  template <class Visit>
  Status for_each(Visit&& visit) {
    for (std::uint64_t first = 0; first < source_.elements; first += most_) {
      const std::uint64_t count = std::min(most_, source_.elements - first);
      for (std::uint32_t worker = 0; worker < source_.workers; ++worker) {
        PRESUM_TRY(source_.read(worker, first, count, buffers_[worker].data()));
      }
      PRESUM_TRY(visit(first, count));
    }
    return {};
  }
  audit::Leaves leaves() const { return pointers_; }
  std::uint64_t most() const { return most_; }

 private:
  const GradientSource& source_;
  std::uint64_t most_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<const void*> pointers_;
};

// What the all-reduce gave: elements in the dtype of the source it was made for.
struct ReducedGradient {
  Dtype dtype = Dtype::kF32;  // as in the file
  std::function<Status(std::uint64_t first, std::uint64_t count, std::byte*)> read;
};

Result<ReducedGradient> open_result(const AuditOptions& o, const GradientSource& source) {
  const bool narrow = element_bytes(source.dtype) == 2;
  PRESUM_ASSIGN(auto opened, TensorFile::open(o.result, narrow ? source.dtype : Dtype::kBF16));
  if (const TensorFile& first = source.files->front(); first.is_named() && opened.is_named()) {
    if (const auto why = TensorFile::difference_of_tensors(first, opened)) {
      return failed<ReducedGradient>(refuse(*why));
    }
  }
  if (source.files->front().is_named() != opened.is_named()) {
    return failed<ReducedGradient>(refuse(
        fmt::format("{}: .npy files go by position and .safetensors by name; give the result as "
                    "the gradients are",
                    o.result)));
  }
  if (opened.elements() != source.elements) {
    return failed<ReducedGradient>(refuse(fmt::format(
        "{}: {} elements, and every worker has {}", o.result, opened.elements(), source.elements)));
  }
  const Dtype dtype = opened.dtype();
  if (dtype != source.dtype && element_bytes(dtype) <= element_bytes(source.dtype)) {
    return failed<ReducedGradient>(refuse(fmt::format(
        "{}: holds {}, which does not hold sums of {} gradients; give what the all-reduce wrote, "
        "in the gradients' dtype or a wider one",
        o.result, dtype_name(dtype), dtype_name(source.dtype))));
  }
  auto file = std::make_shared<TensorFile>(std::move(opened));
  return ReducedGradient{dtype, [file](std::uint64_t first, std::uint64_t count, std::byte* out) {
                           return file->read(first, count, out);
                         }};
}

template <class Real>
void convert(const std::byte* in, Dtype from, std::uint64_t count, Dtype to, std::byte* out) {
  std::vector<Real> values(count);
  audit::unpack(in, from, std::span(values));
  audit::pack(std::span<const Real>(values), to, out);
}

// The same gradients in the wider dtype in which their sum was kept: no value changes.
GradientSource widened(const GradientSource& source, Dtype to) {
  GradientSource out = source;
  out.dtype = to;
  out.name += fmt::format(", the result {}", dtype_name(to));
  const Dtype from = source.dtype;
  const auto read = source.read;
  out.read = [=](std::uint32_t worker, std::uint64_t first, std::uint64_t count,
                 std::byte* elements) -> Status {
    std::vector<std::byte> narrow(count * element_bytes(from));
    PRESUM_TRY(read(worker, first, count, narrow.data()));
    to == Dtype::kF64 ? convert<double>(narrow.data(), from, count, to, elements)
                      : convert<float>(narrow.data(), from, count, to, elements);
    return {};
  };
  return out;
}

// Of all elements: gradients of one layer may be zero.
Result<audit::Nearer> find_nearer(const GradientSource& source, const ReducedGradient& result) {
  ChunkReader chunk(source);
  std::vector<std::byte> actual(chunk.most() * element_bytes(source.dtype));
  audit::Nearer all;
  const Status read = chunk.for_each([&](std::uint64_t first, std::uint64_t count) -> Status {
    PRESUM_TRY(result.read(first, count, actual.data()));
    const auto here = audit::nearer(chunk.leaves(), source.dtype, count, actual.data());
    all.to_sum += here.to_sum;
    all.to_mean += here.to_mean;
    return {};
  });
  if (!read) return read.error();
  return all;
}

Result<AuditReport> survey_of(const AuditOptions& o, const GradientSource& source,
                              ProgressBar& bar) {
  auto survey = audit::Survey::create({source.workers, source.dtype, source.elements, o.seed});
  if (!survey) return survey.error();
  AuditReport report{.source = source.name, .workers = source.workers, .dtype = source.dtype};
  ChunkReader chunk(source);
  const Status read = chunk.for_each([&](std::uint64_t first, std::uint64_t count) -> Status {
    survey->add(chunk.leaves(), count);
    bar.show(first + count, source.elements);
    return {};
  });
  if (!read) return read.error();
  report.survey = survey->result();
  return report;
}

Result<ActualResult> comparison_of(const AuditOptions& o, const GradientSource& source,
                                   const ReducedGradient& result) {
  PRESUM_ASSIGN(const auto nearer, find_nearer(source, result));
  ActualResult out{.file = o.result, .nearer = nearer, .comparison = {}};
  PRESUM_ASSIGN(auto auditor,
                audit::Auditor::create(source.workers, source.dtype,
                                       out.mean() ? source.workers : 1, source.elements));
  ChunkReader chunk(source);
  std::vector<std::byte> actual(chunk.most() * element_bytes(source.dtype));
  const Status read = chunk.for_each([&](std::uint64_t first, std::uint64_t count) -> Status {
    PRESUM_TRY(result.read(first, count, actual.data()));
    return auditor.add(chunk.leaves(), count, actual.data());
  });
  if (!read) return read.error();
  out.comparison = auditor.comparison();
  return out;
}

Result<AuditReport> examine(const AuditOptions& o, const GradientSource& gradients,
                            ProgressBar& bar) {
  if (o.result.empty()) return survey_of(o, gradients, bar);
  PRESUM_ASSIGN(const auto result, open_result(o, gradients));
  const bool same = result.dtype == gradients.dtype;
  const GradientSource source = same ? gradients : widened(gradients, result.dtype);
  PRESUM_ASSIGN(auto actual, comparison_of(o, source, result));
  auto report = survey_of(o, source, bar);
  if (report) report->actual = std::move(actual);
  return report;
}

Status check_options(const AuditOptions& o) {
  if (!o.dtype.empty() && !dtype_of(o.dtype)) {
    return refuse("--dtype is fp32, fp64, bf16 or fp16");
  }
  if (!o.result.empty() && o.files.empty()) {
    return refuse("--result needs the files of the workers' gradients");
  }
  for (const std::string& file : o.files) {
    std::error_code error;
    if (!o.result.empty() && std::filesystem::equivalent(file, o.result, error)) {
      return refuse(fmt::format("{} is the result, and among the workers' gradients", file));
    }
  }
  if (!o.files.empty() && !o.synthetic_only.empty()) {
    return refuse(fmt::format("{} is of made-up gradients; with files leave it out",
                              fmt::join(o.synthetic_only, ", ")));
  }
  return o.output.empty() ? Status{} : check_can_write(o.output);
}

Result<AuditReport> run(const AuditOptions& o, std::ostream& err) {
  PRESUM_TRY(check_options(o));
  const auto said = dtype_of(o.dtype);
  PRESUM_ASSIGN(const auto source, o.files.empty() ? synthetic(o, said) : from_files(o, said));
  PRESUM_TRY(audit::check_arguments(source.workers, source.dtype, 1));
  ProgressBar bar(err, "elements");
  return examine(o, source, bar);
}

int audit_verb(const AuditOptions& o, const Streams& io) {
  const auto report = run(o, io.err);
  if (!report) return complain(io, "audit", report.error());
  io.out << (o.format == "json" ? audit_json(*report) : audit_text(*report));
  if (!o.output.empty()) {
    if (auto s = write_page_file(o.output, audit_page(*report)); !s)
      return complain(io, "audit", s.error());
    if (o.format == "text") io.out << "chart: " << printable(o.output) << '\n';
  }
  return audit_findings(*report).empty() ? kOk : kFindings;
}

}  // namespace

void add_audit(CLI::App& program, Command& chosen) {
  auto o = std::make_shared<AuditOptions>();
  auto* command = program.add_subcommand("audit", "what adding in another order or format changes");
  command->footer(kAuditHelp);
  command->add_option("FILE", o->files, "the workers' gradients");
  command->add_option("--result", o->result, "what the all-reduce gave");
  const std::vector<CLI::Option*> synthetic_only = {
      command->add_option("--workers", o->workers, "of made-up gradients")->capture_default_str(),
      command->add_option("--elements", o->elements, "likewise")->capture_default_str(),
      command
          ->add_option("--distribution", o->distribution,
                       "likewise: gradients, gaussian, lognormal or wide")
          ->capture_default_str()};
  command->add_option("--dtype", o->dtype, "fp32 (default), fp64, bf16 or fp16");
  command->add_option("--seed", o->seed, "of made-up gradients and of orders of arrival")
      ->check(CLI::Range(std::uint64_t{0}, kSeedMax))
      ->capture_default_str();
  add_format(command, o->format, "text or json", {"text", "json"});
  command->add_option("-o,--output", o->output, "also draw this HTML page");
  command->callback([&chosen, o, synthetic_only] {
    for (const CLI::Option* option : synthetic_only) {
      if (option->count() > 0) o->synthetic_only.push_back(option->get_name());
    }
    chosen = [o](const Streams& io) { return audit_verb(*o, io); };
  });
}

}  // namespace presum::cli
