// Streams numbers in a file through a model, a chunk a call, and prints the first number of each result:
//
//     mcs -unsafe Torchmdla.cs Stream.cs -out:stream.exe
//     LD_LIBRARY_PATH=$(python -m torchmdla_runtime --library) mono stream.exe model.tmdla numbers.bin 512
//
// The model's method is forward(x: Tensor) -> Tensor, with x of the sizes [1, 512]. It may have a state.
using System;
using System.Globalization;
using System.IO;
using Torchmdla;

internal static class Stream
{
    private static int Main(string[] arguments)
    {
        if (arguments.Length != 3)
        {
            Console.Error.WriteLine("usage: stream model.tmdla numbers.bin length");
            return 2;
        }
        try
        {
            int length = int.Parse(arguments[2], CultureInfo.InvariantCulture);
            using (var model = new Model(arguments[0], threads: 1))
            using (var session = model.NewSession())
            using (var file = new BinaryReader(File.OpenRead(arguments[1])))
            {
                var chunk = new float[length];
                while (file.BaseStream.Length - file.BaseStream.Position >= sizeof(float) * length)
                {
                    for (int i = 0; i < length; ++i)
                        chunk[i] = file.ReadSingle();
                    var result = (Tensor)session.Call("forward", new Tensor(chunk, 1, length));
                    Console.WriteLine(result.Data[0].ToString("R", CultureInfo.InvariantCulture));
                }
            }
            return 0;
        }
        catch (Exception error) when (error is ModelException || error is IOException)
        {
            Console.Error.WriteLine(error.Message);
            return 1;
        }
    }
}
