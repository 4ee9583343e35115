// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

namespace presum::cli {
namespace {

class TensorFiles : public testing::Test {
 protected:
  TensorFiles() { std::filesystem::create_directories(folder_); }
  ~TensorFiles() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    const auto path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string error(const std::string& name, const std::string& bytes,
                    std::optional<Dtype> said = {}) const {
    const auto file = TensorFile::open(write(name, bytes), said);
    if (file) return "";
    return file.error().message.substr(folder_.string().size() + 1 + name.size());
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("presum_tensor_file_" + std::to_string(getpid()));
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                const std::string& order = "False") {
  const std::string header =
      "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
  const auto length = static_cast<std::uint16_t>(header.size());
  return "\x93NUMPY" + std::string("\x01\x00", 2) + bytes_of(std::vector{length}) + header + data;
}

std::string safetensors(const std::string& header, const std::string& data) {
  return bytes_of(std::vector{static_cast<std::uint64_t>(header.size())}) + header + data;
}

TEST_F(TensorFiles, ReadNpyPieceByPiece) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  auto file = TensorFile::open(write("a.npy", npy("<f4", "(6,)", bytes_of(values))), {});
  ASSERT_TRUE(file);
  EXPECT_EQ(file->dtype(), Dtype::kF32);
  EXPECT_EQ(file->rows(), 1U);
  EXPECT_EQ(file->elements(), 6U);
  std::vector<float> part(3);
  ASSERT_TRUE(file->read(2, 3, reinterpret_cast<std::byte*>(part.data())));
  EXPECT_EQ(part, (std::vector<float>{3, 4, 5}));
}

TEST_F(TensorFiles, ANpyOfTwoDimensionsHasRows) {
  const auto data = bytes_of(std::vector<double>(6));
  const auto file = TensorFile::open(write("a.npy", npy("<f8", "(2, 3)", data)), {});
  EXPECT_EQ(file->rows(), 2U);
  EXPECT_EQ(file->row_elements(), 3U);
}

TEST_F(TensorFiles, RawTwoBytesNeedAWord) {
  const auto file = npy("|V2", "(2,)", "abcd");
  EXPECT_EQ(error("a.npy", file), ": two bytes an element: say what they are with --dtype bf16");
  EXPECT_EQ(error("a.npy", file, Dtype::kBF16), "");
  EXPECT_EQ(error("a.npy", npy("<u2", "(2,)", "abcd"), Dtype::kBF16), "");
  EXPECT_EQ(error("a.npy", npy("<f4", "(1,)", "abcd"), Dtype::kBF16), "");  // it says so itself
}

TEST_F(TensorFiles, HostileNpyIsRefusedInOneLine) {
  const std::string cut = ": cut off: the .npy is not whole";
  EXPECT_EQ(error("a.npy", npy("<f4", "(7,)", "abcd")), cut);
  EXPECT_EQ(error("a.npy", npy("<f4", "(288230376151711744,64)", "abcd")), cut);
  EXPECT_EQ(error("a.npy", std::string("\x93NUMPY\x01", 7)), cut);
  EXPECT_EQ(error("a.npy", "\x93NUMPY" + std::string("\x02\0\xff\xff\xff\xff", 6)),
            ": the .npy header is too long");
  EXPECT_EQ(error("a.npy", npy("<i8", "(1,)", "abcdefgh")),
            ": holds <i8; fp32, fp64, fp16 and bf16 are possible");
  for (const char* shape : {"(1,)a", "(x,)", "(99999999999999999999,)", "(1)", "(-1,)", "(1.0,)",
                            "(1,,)", "(,1)", "(1 1)", "[1]", "(1,"}) {
    EXPECT_EQ(error("a.npy", npy("<f4", shape, "abcd")), ": the .npy header cannot be read")
        << shape;
  }
  EXPECT_EQ(error("a.npy", npy("<f4", "(1,)", "abcd", "maybe")),
            ": the .npy header cannot be read");
  EXPECT_EQ(error("a.npy", npy("<f4", "(1,)", "abcdefg")),
            ": 3 bytes behind the array: more than one array, or damaged");
  EXPECT_EQ(error("a.npy", npy(">f4", "(1,)", "abcd")), ": big-endian (>f4); save x.astype('<f4')");
  auto version = npy("<f4", "(1,)", "abcd");
  version[6] = 4;
  EXPECT_EQ(error("a.npy", version), ": an unknown .npy version");
  EXPECT_EQ(error("a.npy", npy("<f4", "(1, 1)", "abcd", "True")),
            ": stored by columns; save numpy.ascontiguousarray(x)");
  EXPECT_EQ(error("a.txt", "hello"), ": neither .npy nor .safetensors");
  EXPECT_EQ(TensorFile::open("/nowhere/a.npy", {}).error().code, ErrorCode::kNotFound);
}

TEST_F(TensorFiles, SafetensorsAreJoinedByName) {
  const auto header =
      R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},"__metadata__":{"x":"y"}})";
  auto file = TensorFile::open(
      write("m.safetensors", safetensors(header, bytes_of(std::vector<float>{1, 2, 3}))), {});
  ASSERT_TRUE(file);
  EXPECT_EQ(file->elements(), 3U);
  std::vector<float> all(3);
  ASSERT_TRUE(file->read(0, 3, reinterpret_cast<std::byte*>(all.data())));
  EXPECT_EQ(all, (std::vector<float>{3, 1, 2}));
}

TEST_F(TensorFiles, HostileSafetensorsAreRefusedInOneLine) {
  const auto refuse = [&](const std::string& header) {
    return error("a.safetensors", safetensors(header, "abcdefgh"));
  };
  EXPECT_EQ(refuse("[]"), ": the .safetensors header is no JSON object");
  EXPECT_EQ(refuse("{"), ": the .safetensors header is no JSON object");
  EXPECT_EQ(refuse(std::string(100'000, '[')), ": the .safetensors header is no JSON object");
  EXPECT_EQ(refuse("{}"), ": no tensor in it");
  EXPECT_EQ(refuse(R"({"a":3})"), ": tensor a: no dtype, or no two data_offsets");
  EXPECT_EQ(refuse(R"({"a":{"dtype":"F32","data_offsets":[-4,4]}})"),
            ": tensor a: no dtype, or no two data_offsets");
  EXPECT_EQ(refuse(R"({"\u001b[2J":{"dtype":"I64","data_offsets":[0,8]}})"),
            ": tensor ?[2J: I64; all tensors must be of one of fp32, fp64, fp16, bf16");
  EXPECT_EQ(error("a.safetensors", "abc"), ": cut off: the .safetensors is not whole");
  EXPECT_EQ(error("a.safetensors", std::string(8, '\xff')),
            ": the .safetensors header is too long");
}

// The rules of the format: shape and offsets agree, and tensors cover the data without holes.
TEST_F(TensorFiles, SafetensorsThatBreakTheirFormatAreRefusedByName) {
  const auto of = [&](const std::string& tensors) {
    return error("a.safetensors", safetensors("{" + tensors + "}", "abcdefghijkl"));
  };
  const auto tensor = [](const std::string& name, const std::string& shape,
                         const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  EXPECT_EQ(of(tensor("a", "[3]", "[0,12]")), "");
  EXPECT_EQ(of(tensor("b", "[1]", "[8,12]") + "," + tensor("a", "[2,1]", "[0,8]")), "");
  EXPECT_EQ(of(tensor("a", "[3]", "[0,12]") + "," + tensor("b", "[0]", "[12,12]")), "");
  for (const char* shape : {"[-3]", "[1.5]", "[3.0]", "3", "null", R"(["3"])", "[[3]]"}) {
    EXPECT_EQ(of(tensor("a", shape, "[0,12]")), ": tensor a: the shape is no list of counts")
        << shape;
  }
  EXPECT_EQ(of(R"("a":{"dtype":"F32","data_offsets":[0,12]})"),
            ": tensor a: the shape is no list of counts");
  EXPECT_EQ(of(tensor("a", "[4]", "[0,12]")),
            ": tensor a: data_offsets span 12 bytes, and its shape is of 4 fp32 elements");
  EXPECT_EQ(of(tensor("a", "[4294967296,4294967296]", "[0,0]")),
            ": tensor a: the shape is no list of counts");
  EXPECT_EQ(of(tensor("a", "[3]", "[12,0]")), ": tensor a: data_offsets end before they begin");
  EXPECT_EQ(of(tensor("a", "[4]", "[0,16]")), ": tensor a: data_offsets outside the file");
  EXPECT_EQ(of(tensor("a", "[2]", "[0,8]") + "," + tensor("b", "[2]", "[4,12]")),
            ": tensor b: data_offsets overlap those of another tensor");
  EXPECT_EQ(of(tensor("a", "[1]", "[0,4]") + "," + tensor("b", "[1]", "[8,12]")),
            ": tensor b: a hole of 4 bytes before its data");
  EXPECT_EQ(of(tensor("a", "[2]", "[4,12]")), ": tensor a: a hole of 4 bytes before its data");
  EXPECT_EQ(of(tensor("a", "[2]", "[0,8]")),
            ": tensor a: 4 bytes behind its data, which is the last of the file");
  EXPECT_EQ(of(tensor("a", "[3]", "[0,12]") + "," + tensor("a", "[3]", "[0,12]")),
            ": tensor a: twice in the header");
  EXPECT_EQ(of(R"("a":{"dtype":"F16","dtype":"F32","shape":[3],"data_offsets":[0,12]})"),
            ": tensor a: dtype: twice in the header");
}

TEST_F(TensorFiles, WhatIsNoFileIsNamed) {
  EXPECT_TRUE(TensorFile::open(std::filesystem::temp_directory_path(), {})
                  .error()
                  .message.ends_with(": is a folder: give the files in it"));
  EXPECT_EQ(TensorFile::open("/dev/null", {}).error().message,
            "/dev/null: is a device or a pipe: give a file, which can be read in pieces");
  EXPECT_EQ(error("a.npy", ""), ": empty file");
  EXPECT_EQ(error("a.safetensors", ""), ": empty file");
  EXPECT_EQ(TensorFile::open("/nowhere/a.npy", {}).error().message, "/nowhere/a.npy: no such file");
}

TEST_F(TensorFiles, DeeplyNestedSafetensorsAreRefusedInOneLine) {
  const std::string nested = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  const auto refuse = [&](const std::string& header) {
    return error("a.safetensors", safetensors(header, "abcdefgh"));
  };
  const std::string refused = ": tensor a: no dtype, or no two data_offsets";
  EXPECT_EQ(refuse(R"({"a":{"dtype":)" + nested + R"(,"data_offsets":[0,8]}})"), refused);
  EXPECT_EQ(refuse(R"({"a":{"dtype":"F32","data_offsets":)" + nested + "}}"), refused);
  EXPECT_EQ(refuse(R"({"a":)" + nested + "}"), refused);
  EXPECT_EQ(refuse(R"({"__metadata__":)" + nested +
                   R"(,"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
            "");
}

TEST_F(TensorFiles, FilesThatDoNotBelongTogetherAreNamed) {
  const auto open = [&](const std::string& name, const std::string& bytes) {
    return *TensorFile::open(write(name, bytes), {});
  };
  const auto one = open("1.npy", npy("<f4", "(1,)", "abcd"));
  const auto two = open("2.npy", npy("<f4", "(2,)", "abcdefgh"));
  const auto wide = open("3.npy", npy("<f8", "(1,)", "abcdefgh"));
  EXPECT_EQ(TensorFile::difference(one, one), std::nullopt);
  EXPECT_TRUE(TensorFile::difference(one, two)->ends_with("1 and 2 elements"));
  EXPECT_TRUE(TensorFile::difference(one, wide)->ends_with("fp32 and fp64"));
  const auto named =
      open("4.safetensors",
           safetensors(R"({"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd"));
  EXPECT_TRUE(TensorFile::difference(one, named)
                  ->ends_with("one is .npy and one .safetensors; give files of one kind"));
}

}  // namespace
}  // namespace presum::cli
